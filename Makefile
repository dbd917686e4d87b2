# The everyday commands. Each is a script of its own, so that it can be read and run without make.

.PHONY: run test bench testbed-up testbed-down

# Builds Cofer and serves. `make run ARGS='--listen 127.0.0.1:8080'` passes arguments to `cofer serve`.
run:
	@scripts/run $(ARGS)

# All checks and tests, against real engines that are started for it and taken down after.
# `make test ARGS='-p cofer-store'` passes arguments to nextest.
test:
	@scripts/test $(ARGS)

# Figures of the release binary on this machine (see bench/README.md).
bench:
	@bench/run

# The same engines, kept up for tests run by hand: eval "$$(scripts/testbed env)"
testbed-up:
	@scripts/install-test-tools
	@scripts/testbed-tools
	@scripts/testbed up
	@scripts/testbed-images

testbed-down:
	@scripts/testbed down
