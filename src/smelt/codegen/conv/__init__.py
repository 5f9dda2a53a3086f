"""Own convolutions over channels-last tensors: emission, packing, and which kernel a shape gets."""
