"""Whether, when and for which calls something is compiled: the account of builds, trials, calls that were seen.

Read `ledger` first. Nothing here changes an answer, only the time.
"""
