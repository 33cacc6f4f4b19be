// Load by k6: k6 run -e HEED_URL=http://127.0.0.1:8000 deploy/k6/attention.js
// A closed loop of 8 connections, then an open one of 200 requests a second. HEED_M and HEED_D: positions and width.
import http from 'k6/http';
import { check } from 'k6';

const url = __ENV.HEED_URL || 'http://127.0.0.1:8000';
const block = __ENV.HEED_BLOCK || 'scaled_dot_product';
const m = Number(__ENV.HEED_M || 64);
const d = Number(__ENV.HEED_D || 64);

export const options = {
  scenarios: {
    closed: { executor: 'constant-vus', exec: 'native', vus: 8, duration: '20s' },
    open: {
      executor: 'constant-arrival-rate', exec: 'binary', rate: 200, timeUnit: '1s', duration: '20s', startTime: '20s',
      preAllocatedVUs: 50, maxVUs: 500,
    },
  },
  thresholds: {
    http_req_failed: ['rate<0.001'],
    'http_req_duration{scenario:open}': ['p(99)<100'],
  },
};

// Numbers that vary, the same in every run.
const numbers = Array.from({ length: m * d }, (_, i) => Math.round(1000 * Math.sin(12.9898 * i)) / 1000);
const rows = Array.from({ length: m }, (_, i) => numbers.slice(i * d, (i + 1) * d));
const names = ['query', 'key', 'value'];

const nativeBody = JSON.stringify({ query: rows, key: rows, value: rows, is_causal: true });

const head = JSON.stringify({
  inputs: names.map((name) => ({
    name, shape: [1, 1, m, d], datatype: 'FP32', parameters: { binary_data_size: 4 * m * d },
  })),
  parameters: { is_causal: true, binary_data_output: true },
});
const binaryBody = new Uint8Array(head.length + 3 * 4 * m * d);
binaryBody.set(Array.from(head, (letter) => letter.charCodeAt(0)));
names.forEach((_, i) => {
  binaryBody.set(new Uint8Array(Float32Array.from(numbers).buffer), head.length + i * 4 * m * d);
});

export function native() {
  const answer = http.post(`${url}/v1/attention/${block}`, nativeBody, {
    headers: { 'Content-Type': 'application/json' },
  });
  check(answer, { 'native: 200': (of) => of.status === 200 });
}

export function binary() {
  const answer = http.post(`${url}/v2/models/${block}/infer`, binaryBody.buffer, {
    headers: { 'Content-Type': 'application/octet-stream', 'Inference-Header-Content-Length': String(head.length) },
    responseType: 'binary',
  });
  check(answer, { 'binary: 200': (of) => of.status === 200 });
}
