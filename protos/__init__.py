"""The wire contract: three .proto files and the stubs generated from them (`python -m culm.protos.generate`)."""
