"""Fit and judge calibrations of the draft's confidences from recorded rounds."""
