"""The sources of a block's weights: a checkpoint of the user's, or a seed."""
