"""Programs on many ranks, as text and pages."""
