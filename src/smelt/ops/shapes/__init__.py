"""What operators make of sizes and strides, in plain Python: for integers, and for sizes known at run time only."""
