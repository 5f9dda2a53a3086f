"""The native entry and the executor: functions that walk tables.

Read `executor_ir`, then `entry_ir`.
"""
