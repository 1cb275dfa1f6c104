"""The contract on the wire: generated code, arrays, messages as frozen values, errors as google.rpc.Status."""
