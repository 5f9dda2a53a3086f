"""One program on many ranks: what each computes, what they send, and all of them at once in one process."""
