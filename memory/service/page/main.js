// The page: every part looks after its own corner; this sets them going.

import { startAgents } from "./agents.js";
import { login, startConnection } from "./connection.js";
import { byId } from "./elements.js";
import { startHome } from "./home.js";
import { startKeys } from "./keys.js";
import { startLetters } from "./letters.js";
import { look } from "./live.js";
import { startQueue } from "./queue.js";
import { startReader } from "./reader.js";
import { startSearch } from "./search.js";
import { startSettings } from "./settings.js";

startSettings();
startReader();
startKeys();
startConnection();
startSearch();
startAgents();
startQueue();
startLetters();
startHome();
// Who waited for another language could not be given the focus before.
if (document.activeElement === document.body) byId("query").focus();
await login();
look();
