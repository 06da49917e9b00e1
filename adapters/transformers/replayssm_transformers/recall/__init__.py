"""`replayssm eval recall`: answers that depend on what a state was told thousands of tokens ago."""
