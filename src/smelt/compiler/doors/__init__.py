"""Programs of torch's other captures come in here, and Smelt's go out: `torch.fx`, `torch.export`, `torch.compile`."""
