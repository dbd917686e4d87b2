// Run once while the image is built: makes /opt/mcp/server run the program of the package named as the argument.
const fs = require('fs');
const path = require('path');

const name = process.argv[2];
const home = path.join('/opt/mcp/node_modules', name);
const { bin } = JSON.parse(fs.readFileSync(path.join(home, 'package.json'), 'utf8'));
const programs = typeof bin === 'string' ? { [name]: bin } : bin || {};
const program = programs[name.split('/').pop()] || programs[name] || Object.values(programs)[0];
if (!program) {
  console.error(`the package ${name} has no program to run`);
  process.exit(1);
}
const file = path.resolve(home, program);
fs.chmodSync(file, 0o755);
fs.symlinkSync(file, '/opt/mcp/server');
// A place to keep things, for servers that are given a volume there.
fs.mkdirSync('/data', { recursive: true });
fs.chownSync('/data', 1000, 1000);
