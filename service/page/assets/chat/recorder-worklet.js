// Runs beside the sound: hands on the samples of the microphone. The end of a recording loses less than LENGTH of them.

const LENGTH = 512; // samples, 32 ms

class RecorderProcessor extends AudioWorkletProcessor {
  samples = new Float32Array(LENGTH);
  filled = 0;

  process([[channel]]) {
    for (const value of channel ?? []) {
      this.samples[this.filled++] = value;
      if (this.filled < LENGTH) continue;
      this.port.postMessage(this.samples);
      this.samples = new Float32Array(LENGTH);
      this.filled = 0;
    }
    return true;
  }
}

registerProcessor("recorder", RecorderProcessor);
