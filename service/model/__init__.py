"""One loaded version of a model: graphs, specs, checks, estimates and calibration."""
