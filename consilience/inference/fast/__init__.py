"""What makes inference fast and changes no number: written-out gradients, compiled steps, memo tables."""
