"""What every other package may import; these modules import nothing else of service/."""
