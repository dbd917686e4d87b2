# The everyday commands. Each is a script of its own, so that it can be read and run without make.

.PHONY: test testbed-up testbed-down

# All checks and tests, against real engines that are started for it and taken down after.
# `make test ARGS='-p cofer-store'` passes arguments to nextest.
test:
	@scripts/test $(ARGS)

# The same engines, kept up for tests run by hand: eval "$$(scripts/testbed env)"
testbed-up:
	@scripts/install-test-tools
	@scripts/testbed-tools
	@scripts/testbed up
	@scripts/testbed-images

testbed-down:
	@scripts/testbed down
