"""What a round costs over real processes: seconds and bytes of every exchange."""
