"""The viewer: the page at / where one looks at attention. Its files are those of heed_client, which saves pages."""
