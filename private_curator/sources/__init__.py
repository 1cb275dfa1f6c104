"""What a hospital's own systems hold, as records: SQL, OMOP, FHIR, DICOM, NIfTI. Opened by `records convert` alone."""
