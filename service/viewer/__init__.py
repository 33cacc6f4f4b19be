"""The viewer: the page at / that shows attention. Its files are in heed_client, which saves pages."""
