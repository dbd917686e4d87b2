// server.js — reads JSON-RPC from stdin, writes responses to stdout
const readline = require('readline');

const rl = readline.createInterface({ input: process.stdin });

const tools = [
  {
    name: 'echo',
    description: 'Echoes the input text',
    inputSchema: {
      type: 'object',
      properties: { text: { type: 'string' } },
      required: ['text'],
    },
  },
];

rl.on('line', (line) => {
  try {
    const request = JSON.parse(line);
    const response = handleRequest(request);
    process.stdout.write(JSON.stringify(response) + '\n');
  } catch (err) {
    process.stderr.write(`Error: ${err.message}\n`);
  }
});

function handleRequest(req) {
  switch (req.method) {
    case 'tools/list':
      return { jsonrpc: '2.0', id: req.id, result: { tools } };

    case 'tools/call':
      const toolName = req.params?.name;
      if (toolName === 'echo') {
        return {
          jsonrpc: '2.0',
          id: req.id,
          result: {
            content: [{ type: 'text', text: req.params.arguments.text }],
          },
        };
      }
      return {
        jsonrpc: '2.0',
        id: req.id,
        error: { code: -32601, message: `Unknown tool: ${toolName}` },
      };

    default:
      return {
        jsonrpc: '2.0',
        id: req.id,
        error: { code: -32601, message: `Method not found: ${req.method}` },
      };
  }
}
