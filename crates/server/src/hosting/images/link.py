# Run once while the image is built: makes /opt/mcp/server run the program of the package named as the argument.
import os
import shutil
import sys
from importlib.metadata import distribution

name = sys.argv[1]
scripts = [e.name for e in distribution(name).entry_points if e.group == "console_scripts"]
if not scripts:
    sys.exit(f"the package {name} has no program to run")
program = shutil.which(name if name in scripts else scripts[0])
os.symlink(program, "/opt/mcp/server")
# A place to keep things, for servers that are given a volume there.
os.makedirs("/data", exist_ok=True)
os.chown("/data", 1000, 1000)
