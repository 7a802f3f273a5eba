"""One gate for whatever comes from a site: by file or over Flower, the same rules and the same sentences."""
