"""What a run is called and what it leaves on disk."""
