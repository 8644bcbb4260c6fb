"""What is lost and what is charged when a part of a run is killed."""
