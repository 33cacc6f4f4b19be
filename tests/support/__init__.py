"""What tests share: servers, connections, models, tensors and their truth."""
