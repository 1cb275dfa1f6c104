"""The ML team's side: plans, asks, and adapts its model by what a hospital releases."""
