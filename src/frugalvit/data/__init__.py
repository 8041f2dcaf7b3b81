"""Pictures in."""
