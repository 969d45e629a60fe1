// Compacted topics as this client sees them: node compaction.js SERVICE_URL ADMIN_URL. Each scenario prints PASS or FAIL.
'use strict';

const assert = require('assert');
const crypto = require('crypto');
const Pulsar = require('pulsar-client');

const LOG = 'a=1 b=1 a=2 =keyless c=1 d=1 c= e=1 b= a=3';
const LEFT = 'd=1 e=1 a=3';
const RECEIVE_MS = 30000;

const [serviceUrl, adminUrl] = process.argv.slice(2);
const newTopic = () => `persistent://public/default/node-${crypto.randomUUID()}`;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function admin(method, topic, suffix) {
  const answer = await fetch(`${adminUrl}/admin/v2/${topic.replace('://', '/')}${suffix}`, { method });
  const body = await answer.text();
  assert(answer.ok, `${method} ${suffix}: ${answer.status} ${body}`);
  return body;
}

async function compact(topic) {
  await admin('PUT', topic, '/compaction');
  while (!(await admin('GET', topic, '/compaction')).includes('SUCCESS')) await pause(50);
}

/** Sends "key=value" for each word, all before the first receipt is awaited. */
async function send(producer, words) {
  const receipts = words.split(' ').map((pair) => {
    const [key, value] = pair.split('=');
    return producer.send({ data: Buffer.from(value), partitionKey: key || undefined });
  });
  await producer.flush();
  return Promise.all(receipts);
}

/** REQUIRES: keys or values. This client shows what was taken out of a batch as a message with neither. */
const textOf = (pairs) => pairs.filter((each) => each !== '=').join(' ');
const pair = (message) => `${message.getPartitionKey()}=${message.getData()}`;

async function readAll(client, topic, options = {}) {
  const reader = await client.createReader({
    topic, startMessageId: Pulsar.MessageId.earliest(), readCompacted: true, ...options,
  });
  const found = [];
  while (reader.hasNext()) found.push(pair(await reader.readNext(RECEIVE_MS)));
  await reader.close();
  return textOf(found);
}

async function compactedTopic(client, options = {}) {
  const topic = newTopic();
  const producer = await client.createProducer({ topic, batchingEnabled: false, ...options });
  const ids = await send(producer, LOG);
  await compact(topic);
  return { topic, producer, ids };
}

const scenarios = {
  async 'codecs and batches'(client) {
    for (const compressionType of [undefined, 'LZ4', 'Zlib', 'ZSTD', 'SNAPPY']) {
      for (const batchingEnabled of [true, false]) {
        const options = { batchingEnabled, batchingMaxMessages: 4, batchingMaxPublishDelayMs: 1000 };
        if (compressionType) options.compressionType = compressionType;
        const { topic, producer } = await compactedTopic(client, options);
        assert.strictEqual(await readAll(client, topic), LEFT, `${compressionType}, batches ${batchingEnabled}`);
        await send(producer, 'f=1 a=4');
        assert.strictEqual(await readAll(client, topic), `${LEFT} f=1 a=4`, 'and what follows');
        if (compressionType !== 'Zlib' || batchingEnabled) { // this client can't read an empty one that is compressed so
          assert.strictEqual(await readAll(client, topic, { readCompacted: false }), `${LOG} f=1 a=4`, 'the whole topic');
        }
        await producer.close();
      }
    }
  },

  async 'a consumer goes on where it was'(client) {
    const { topic, producer } = await compactedTopic(client);
    const subscribe = () => client.subscribe({
      topic,
      subscription: 'view',
      subscriptionType: 'Failover',
      subscriptionInitialPosition: 'Earliest',
      readCompacted: true,
    });
    let consumer = await subscribe();
    for (const expected of ['d=1', 'e=1']) {
      const message = await consumer.receive(RECEIVE_MS);
      assert.strictEqual(pair(message), expected);
      await consumer.acknowledgeCumulative(message);
    }
    await consumer.close();
    await send(producer, 'g=1');
    consumer = await subscribe();
    for (const expected of ['a=3', 'g=1']) {
      const message = await consumer.receive(RECEIVE_MS);
      assert.strictEqual(pair(message), expected);
    }
    await consumer.close();
    await producer.close();
  },

  async 'seek to a message that is gone'(client) {
    const { topic, producer, ids } = await compactedTopic(client);
    const reader = await client.createReader({ topic, startMessageId: Pulsar.MessageId.latest(), readCompacted: true });
    await reader.seek(ids[4]); // of c=1
    const found = [];
    while (reader.hasNext()) found.push(pair(await reader.readNext(RECEIVE_MS)));
    assert.strictEqual(textOf(found), LEFT);
    await reader.close();
    await producer.close();
  },

  async 'nothing is left'(client) {
    const topic = newTopic();
    const producer = await client.createProducer({ topic, batchingEnabled: false });
    await send(producer, 'a=1 a=');
    await compact(topic);
    assert.strictEqual(await readAll(client, topic), '');
    await send(producer, 'b=1');
    assert.strictEqual(await readAll(client, topic), 'b=1');
    await producer.close();
  },
};

async function main() {
  Pulsar.Client.setLogHandler((level, file, line, message) => {
    if (level >= Pulsar.LogLevel.ERROR) console.error(message);
  });
  const client = new Pulsar.Client({ serviceUrl });
  let failed = 0;
  for (const [name, run] of Object.entries(scenarios)) {
    try {
      await run(client);
      console.log(`PASS compacted: ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL compacted: ${name}: ${error.stack}`);
    }
  }
  await client.close();
  return failed ? 1 : 0;
}

main().then((code) => process.exit(code));
