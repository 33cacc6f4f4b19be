"""Requests per second of Heed beside yardsticks and other servers, in one run, taking turns."""
