"""A FedAvg app that one mod and one strategy make private at client level."""
