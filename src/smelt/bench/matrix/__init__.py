"""One program under many configurations of the compilers there are: what each costs, gives and breaks."""
