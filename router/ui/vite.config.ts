import { defineConfig } from "vite";

// `npm run dev` shows a running router's data: BLADE_ROUTER=http://127.0.0.1:8080
const router = process.env.BLADE_ROUTER ?? "http://127.0.0.1:8080";

export default defineConfig({
  base: "/ui/",
  build: {
    outDir: process.env.UI_OUTPUT ?? "../blade_router/ui/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the content security policy allows no data:
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  // `npx vite preview` shows the build under the policy that the router sends
  preview: {
    headers: {
      "content-security-policy":
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; " +
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    },
  },
  server: { proxy: { "/v1": router, "/ui/stream": router } },
});
