"""Parts of a manifest as JSON."""
