"""What people see of a loader and its iterator."""
