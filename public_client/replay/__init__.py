"""What is fitted to one stored release: views, missing columns, augmentation."""
