"""`replayssm demo`: the whole idea on small trained models, measured on this machine."""
