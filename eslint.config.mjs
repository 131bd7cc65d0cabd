import js from '@eslint/js';
import jsxA11y from 'eslint-plugin-jsx-a11y';
import reactHooks from 'eslint-plugin-react-hooks';
import tseslint from 'typescript-eslint';

const TEXT_NODES_ONLY = 'Text nodes only: the names of jobs and notebooks are data.';

export default tseslint.config(
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  jsxA11y.flatConfigs.recommended,
  {
    languageOptions: {
      parserOptions: {
        project: './jupyter_ext/ui/tsconfig.test.json',
        tsconfigRootDir: import.meta.dirname
      }
    },
    plugins: { 'react-hooks': reactHooks },
    rules: {
      ...reactHooks.configs.recommended.rules,
      eqeqeq: 'error',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      'no-restricted-syntax': [
        'error',
        {
          selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']",
          message: TEXT_NODES_ONLY
        },
        {
          selector: 'MemberExpression[property.name=/^(inner|outer)HTML$/]',
          message: TEXT_NODES_ONLY
        }
      ]
    }
  },
  { ignores: ['jupyter_ext/ui/style/**', 'jupyter_ext/ui/vitest.config.mts', 'lib/**', 'jupyter_ext/labextension/**', 'node_modules/**', '.venv/**'] }
);
