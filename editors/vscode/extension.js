// Starts `polyfuse lsp` and connects the editor to it.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function activate() {
  const [command, ...args] = vscode.workspace.getConfiguration("polyfuse").get("command");
  const options = { documentSelector: [{ language: "polyfuse" }] };
  client = new LanguageClient("polyfuse", "Polyfuse", { command, args }, options);
  try {
    await client.start();
  } catch (error) {
    const hint = "pip install '.[lsp]' in a clone of polyfuse, or set polyfuse.command";
    vscode.window.showWarningMessage(`polyfuse: no language server (${error.message}); ${hint}`);
  }
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
