"""Where a block's weights are from: a checkpoint of the user's, or a seed."""
