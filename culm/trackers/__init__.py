"""Where a run's numbers are written as it goes on: TensorBoard, trackio, Weights & Biases, MLflow."""
