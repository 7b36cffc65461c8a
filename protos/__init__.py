"""The wire contract: four .proto files and the stubs generated from them (`python -m culm.protos.generate`)."""
