"""A FedAvg app whose clients choose the learning rate in a private vote."""
