module berth.dev/tools/conformance

go 1.26.0
