"""Many runs from one file: plan, workers, Ray, Optuna."""
