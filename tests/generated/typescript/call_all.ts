// Makes every call of calls.ts, which the test writes, and prints what it answers.
import createClient from "openapi-fetch";
import { calls } from "./calls.js";
import type { paths } from "./heed.js";

declare const process: { argv: string[] }; // of Node.js
const address = process.argv[2]!;
const client = createClient<paths>({ baseUrl: address });

// What an application would write: the types of an answer, a generic call, a header, an error.
const body = { query: [[1, 0]], key: [[1, 0]], value: [[2, 0]], is_causal: true };
const params = { header: { "X-Request-Timeout": 30 } };
const answer = await client.POST("/v1/attention/scaled_dot_product", { params, body });
const output: number | unknown[] | null | undefined = answer.data?.output;
const any = await client.POST("/v1/attention/{block}", { params: { path: { block: "scaled_dot_product" } }, body });
const same: unknown = any.data?.["output"];
const wrong = await client.POST("/v1/attention/scaled_dot_product", { body: { ...body, key: [[1, 2, 3]] } });
const field: string | undefined = wrong.error?.field;
console.log(JSON.stringify([output, same, field]));

let memory = "";
for (const [operation, call] of calls(client)) {
  const { response, data } = await call(memory);
  if (response.status === 201) memory = (data as { id: string }).id;
  console.log(JSON.stringify([operation, response.status]));
}
