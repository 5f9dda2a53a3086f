"""Products over few bits: how rows and weights lie (`*_forms`), their kernels, and which of these runs (`planning`)."""
