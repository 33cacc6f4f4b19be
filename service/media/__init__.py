"""Files of pictures and sound in requests: they become the tensors that transformers' processors make of them."""
